"""The pages: one self-contained HTML file each, from templates."""
