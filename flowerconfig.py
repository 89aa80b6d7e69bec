"""Read by Flower when it starts in this folder."""

from app.flower import count_summed_tasks, show_waiting_jobs
from app.flower_access import protect_flower, read_secret_options

# All workers send them (celeryconfig.py): no need to ask each for it every few seconds.
enable_events = False

read_secret_options()
protect_flower()
show_waiting_jobs()
count_summed_tasks()
