# syntax=docker/dockerfile:1
# Pin the base image in releases of your own: --build-arg BASE=python:3.13-slim@sha256:...
ARG BASE=python:3.13-slim
FROM ${BASE} AS build
# Without the jar for Spark, which the daemon does not use; config/spark/Dockerfile builds it.
WORKDIR /src
COPY pyproject.toml README.md LICENSE pyspark_liftlog.py ./
COPY liftlog liftlog
COPY envelope envelope
COPY compaction compaction
COPY acl acl
COPY docs docs
COPY tools/commit_hook.py tools/commit_hook.py
# The sources come without their repository: --build-arg COMMIT=$(git rev-parse HEAD)
ARG COMMIT=""
ENV LIFTLOG_COMMIT=${COMMIT}
# Whatever is downloaded has its version and hashes in there; `make lock` writes them. What comes as
# source is built with tools of the same kind, not with those that pip would fetch for it.
COPY config/docker/build.lock config/docker/requirements.lock config/docker/
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r config/docker/build.lock \
    && /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --require-hashes \
       --wheel-dir /wheels -r config/docker/requirements.lock \
    && /opt/build/bin/pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /wheels . \
    && python -m venv /opt/liftlog \
    && /opt/liftlog/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

# What runs: no compiler, no sources. It writes below /data only, so the root file system can be
# read-only (with a tmpfs on /tmp).
FROM ${BASE}
LABEL org.opencontainers.image.title="liftlog" \
      org.opencontainers.image.description="A durable log for NATS" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 liftlog \
    && useradd --system --uid 10001 --gid 10001 --home-dir /data --shell /usr/sbin/nologin liftlog \
    && install -d -o liftlog -g liftlog -m 0750 /data
COPY --from=build /opt/liftlog /opt/liftlog
ENV PATH=/opt/liftlog/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 LIFTLOG_DATA_DIR=/data
# By number: Kubernetes' runAsNonRoot cannot look names up.
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 9292 8292
STOPSIGNAL SIGTERM
# Unhealthy while it recovers and while NATS is away. Docker only shows that and restarts nothing.
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD \
    ["python", "-I", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8292/readyz', timeout=2)"]
ENTRYPOINT ["liftlog"]
CMD ["serve"]
