"""From measured costs of a job to cores, disks and money for so many jobs per day."""
