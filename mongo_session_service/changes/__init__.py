"""What a change stream reports, as typed values."""
