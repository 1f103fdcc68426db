"""Bare files: Parquet and HDF5 from elsewhere, read in place as recordings, or copied into one."""
