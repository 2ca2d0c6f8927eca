# syntax=docker/dockerfile:1
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE pyspark_liftlog.py ./
COPY liftlog liftlog
COPY envelope envelope
COPY compaction compaction
COPY acl acl
RUN python -m venv /opt/liftlog && /opt/liftlog/bin/pip install --no-cache-dir '.[compression]'

# What runs: no compiler, no sources. It writes below /data only, so the root file system can be
# read-only (with a tmpfs on /tmp).
FROM python:3.13-slim
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
