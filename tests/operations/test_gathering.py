import os
from collections import Counter
from dataclasses import replace

import ckptstore
from ckptstore.operations import history
from ckptstore.operations.ranks.gathering import Gathering
from ckptstore.operations.ranks.reports import Ask, Opening


class Counted:
    """A catalog, and how often each of its methods was called."""

    def __init__(self, catalog):
        self._catalog = catalog
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name):
        self.calls[name] += 1
        return getattr(self._catalog, name)


def test_a_round_of_many_ranks_is_two_transactions(tmp_path):
    with ckptstore.open(tmp_path) as store:
        catalog = Counted(store._parts.catalog)
        parts = replace(store._parts, catalog=catalog)
        with Gathering(parts, lambda: history.draft("main", 1, None, {})) as gathering:
            gathering.deal([Opening(parts.config.id, "main", 1, (), 1)] * 9)
            digests = [os.urandom(16) for _ in range(8)]
            asks = [Ask(digest, [4 << 20], {}, 0) for digest in [*digests, digests[3]]]
            catalog.calls.clear()
            grants = gathering.grant(asks)
            assert catalog.calls["pin"] == catalog.calls["reserve"] == 1
            assert [grant.wanted for grant in grants] == [[0]] * 8 + [[]]
            assert [len(grant.names) for grant in grants] == [0] + [1] * 7 + [0]
            assert len({name for grant in grants for name in grant.names}) == 7
            catalog.calls.clear()
            assert not any(grant.wanted for grant in gathering.grant(asks))
            assert catalog.calls["reserve"] == 0
