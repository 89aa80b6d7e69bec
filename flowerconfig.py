"""Read by Flower when it starts in this folder."""

from app.flower import show_waiting_jobs

show_waiting_jobs()
