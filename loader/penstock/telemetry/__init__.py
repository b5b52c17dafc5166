"""What happens inside, measured at the seams."""
