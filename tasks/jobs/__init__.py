"""Built-in job types, one file each."""
