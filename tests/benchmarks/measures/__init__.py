"""One module for each way of measuring. A measure runs in a process of its own and returns its figures."""
