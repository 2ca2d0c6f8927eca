# syntax=docker/dockerfile:1
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY liftlog liftlog
COPY envelope envelope
COPY compaction compaction
COPY acl acl
RUN python -m venv /opt/liftlog && /opt/liftlog/bin/pip install --no-cache-dir .

FROM python:3.13-slim
RUN useradd --system --uid 10001 --home /data liftlog && install -d -o liftlog -g liftlog /data
COPY --from=build /opt/liftlog /opt/liftlog
ENV PATH=/opt/liftlog/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER liftlog
WORKDIR /data
VOLUME /data
EXPOSE 9292 8292
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD \
    ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8292/readyz', timeout=2)"]
ENTRYPOINT ["liftlog"]
CMD ["serve"]
