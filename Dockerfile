# syntax=docker/dockerfile:1
# Two targets: `docker build --target cuda -t t5gemma2:cuda .` and `docker build --target cpu -t t5gemma2:cpu .`
# Both run as a user without rights, listen on 8000, and serve the bundled demo when no variable is set.

FROM python:3.12-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    VLLM_NO_USAGE_STATS=1 \
    VLLM_WORKER_MULTIPROC_METHOD=spawn \
    TRITON_CACHE_DIR=/home/t5gemma2/.cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/home/t5gemma2/.cache/torchinductor \
    CUDA_CACHE_PATH=/home/t5gemma2/.cache/nv
# A C compiler: torch.compile and Triton build small host modules at start.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev libnuma1 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 t5gemma2 \
    && mkdir -p /home/t5gemma2/.cache/huggingface \
    && chown -R t5gemma2 /home/t5gemma2/.cache
WORKDIR /srv/t5gemma2

FROM base AS cpu
COPY requirements-cpu.lock ./
RUN pip install --no-deps --index-url https://download.pytorch.org/whl/cpu "$(grep '^torch==' requirements-cpu.lock)" \
    && pip install --no-deps -r requirements-cpu.lock
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
COPY plugin ./plugin
COPY config ./config
RUN pip install --no-deps --no-build-isolation .
USER 1000
WORKDIR /home/t5gemma2
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["t5gemma2", "serve", "--host", "0.0.0.0", "--port", "8000"]

FROM base AS cuda
COPY requirements-cuda.lock ./
RUN pip install --no-deps -r requirements-cuda.lock
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
COPY plugin ./plugin
COPY config ./config
RUN pip install --no-deps --no-build-isolation .
USER 1000
WORKDIR /home/t5gemma2
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=600s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=2)"]
ENTRYPOINT ["t5gemma2", "serve", "--host", "0.0.0.0", "--port", "8000"]
