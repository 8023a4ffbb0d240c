"""What the tests expect in full, one file each."""
