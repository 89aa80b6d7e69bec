"""What twenty million finished jobs on disk cost, and how they are best retired."""
