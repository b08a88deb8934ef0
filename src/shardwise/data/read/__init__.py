"""From files and hub data sets to rows, and from rows to examples."""
