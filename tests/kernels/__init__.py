"""What tests share: kernels, drawn pipelines, and stand-ins for arrays, drivers and libraries."""
