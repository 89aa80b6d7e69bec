"""Read by Flower when it starts in this folder."""

from app.flower import count_summed_tasks, show_waiting_jobs

show_waiting_jobs()
count_summed_tasks()
