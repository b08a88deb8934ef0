"""What is trained, and under which layouts."""
