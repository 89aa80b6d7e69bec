"""What Fairline is compared with."""
