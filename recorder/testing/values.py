"""The contract of a storage as a value."""

from __future__ import annotations

import pickle

import pytest

from recorder.errors import FormatError, LayoutError
from recorder.leaf import Leaf
from recorder.storages.base import storage_from_json
from recorder.testing.contract import Contract
from recorder.testing.shards import _unpickled, through_json


class ValueContract(Contract):
    """What a storage says of itself."""

    # The storage as a value.

    def test_it_is_a_value_that_is_equal_to_its_copies(self) -> None:
        copies = _unpickled(pickle.dumps(self.storage)), storage_from_json(through_json(self.storage))
        for copy in copies:
            assert copy == self.storage
            assert hash(copy) == hash(self.storage)
            assert copy.to_json() == self.storage.to_json()

    def test_options_that_it_has_not_are_refused(self) -> None:
        with pytest.raises((LayoutError, FormatError)):
            type(self.storage).from_options({"no such option": 1})
        with pytest.raises(FormatError):
            storage_from_json({**through_json(self.storage), "no such option": 1})

    def test_it_keeps_its_leaves_and_refuses_others_by_name(self) -> None:
        self.storage.check(self.leaves)
        for leaf in self.refused:
            with pytest.raises(LayoutError) as raised:
                self.storage.check([leaf])
            assert repr(leaf.path) in str(raised.value)
            assert "Storage(" in str(raised.value), "it says what would keep the leaf instead"

    def test_it_tells_of_each_leaf_whether_it_is_exact(self, leaf: Leaf) -> None:
        assert self.storage.exact(leaf) is True or self.tolerance != 0.0
