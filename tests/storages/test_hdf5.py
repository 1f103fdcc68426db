"""HDF5Storage keeps the contract, compressed or not."""

from recorder.storages.hdf5 import HDF5Storage
from recorder.testing import INFO_LEAVES, TABLE_LEAVES, StorageContract


class TestHDF5Storage(StorageContract):
    storage, leaves, infos = HDF5Storage(), TABLE_LEAVES, INFO_LEAVES
