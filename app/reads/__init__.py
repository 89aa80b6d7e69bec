"""Queries behind routes and pages. Nothing here changes a job."""
