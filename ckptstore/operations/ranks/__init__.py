"""What several ranks do together: who has what, who stores it, and the one commit that comes of it.

A commit is a row of rounds, in each of which all ranks send the coordinator a message and get an answer
(`ranks.agree`); only the coordinator has the catalog, and the session. `together.commit_together` begins,
`writing.write_share` goes on:

1. `outlines`: every rank describes what it has, without content; where these differ (`differences`), what is there is
   each rank's own; `merging` answers who writes what (`Assignment`).
2. `Opening` → `Dealt`: whose shards of tensors make which chunks (`dealing`), and how many turns there will be.
3. each turn: ranks send each other pieces of chunks that none has whole (`trades`), hash what they have, and `Ask`;
   the coordinator looks these up, pins them, and answers with a `Grant`: what the rank is to store, in packs of which
   names. A rank stores what it was granted while the next turn begins.
4. all have stored everything: `Gathering.settle`.
5. `Report` → the commit: what was written becomes one manifest (`merging`), and exists in one transaction (`publish`).

Ranks without the catalog write through the same `ChunkWriter` as the coordinator: `granted.Granted` stands where the
catalog would be, and knows of what was granted alone.
"""
