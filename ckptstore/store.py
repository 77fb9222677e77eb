"""The face of a store. Every method is a thin call of one operation.

Operations on live state are imported when called: they import torch, which takes seconds that others need not wait.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ckptstore.catalog.records import LATEST, CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import InvalidArgument
from ckptstore.format.codecs import Level
from ckptstore.format.version import MIB
from ckptstore.keeping import Keeping
from ckptstore.opening import open_parts
from ckptstore.operations import address, history
from ckptstore.operations.address import Ref
from ckptstore.operations.committing.background import Background, WhenBusy
from ckptstore.operations.committing.preloading import import_committing, import_staging
from ckptstore.operations.paths import as_globs
from ckptstore.operations.view import Views
from ckptstore.progress import ProgressCallback, meter

if TYPE_CHECKING:
    from ckptstore.operations.committing.handles import CommitHandle
    from ckptstore.operations.ranks.groups import Group
    from ckptstore.operations.ranks.wishes import Wish

DEFAULT_RUN = "main"
DEFAULT_CHUNK_BYTES = 4 * MIB


def open_store(
    url: str | os.PathLike[str],
    *,
    catalog: str | None = None,
    run: str = DEFAULT_RUN,
    create: bool = True,
    read_only: bool = False,
    digest: str | None = None,
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    compression: Level = "auto",
    storage_options: Mapping[str, Any] | None = None,
    encrypt: bool = False,
    key_file: str | os.PathLike[str] | None = None,
) -> Store:
    """Open a store, made if nothing is there yet.

    Args:
        url: a folder, where `~` is the home folder, or any URL that fsspec knows.
        catalog: database URL (SQLAlchemy's); by default `catalog.sqlite` in the folder.
        run: the run that steps belong to; it begins to exist with its first commit.
        create: make what is missing; otherwise a missing store is an error.
        read_only: refuse everything that changes the store; a folder that lacks its catalog is read without one.
        digest: `xxh3_128`, `sha256` or `blake3`, for good; by default the first for a new store, or that of the store.
        chunk_bytes: most bytes of a chunk, 4 KiB to 1 GiB; only looked at when the store is made.
        compression: how to store less, always without loss. `none`: as it is. `fast`: each chunk compressed by itself.
            `best`: also only what changed since the parent's chunk, where that saves an eighth; and of commits that are
            one step of torch.optim.Adam or AdamW apart, only what the step's arithmetic does not tell, which makes
            checkouts slower. `auto`: as `best` without the latter, or `fast`, where the storage is so slow
            that the commit ends sooner (on a local disk that is slower still for `commit_async`, since training needs
            the cores); otherwise only what shrinks to less than half at once, such as zeros and masks.
        storage_options: what fsspec passes on to the file system of a URL.
        encrypt: seal what is stored with a key, when the store is made; later, refuse one that was made without.
        key_file: a file with the passphrase of an encrypted store; by default the one that CKPTSTORE_KEY_FILE in the
            environment names, or else the text of CKPTSTORE_KEY.

    Raises:
        InvalidArgument: an argument that is never valid, or not for this store: another digest, a key for one that is
            not encrypted.
        WrongKey: the store is encrypted, and the key is missing or does not open it.
        CorruptData: the store is encrypted, and its wrapped key is damaged or gone.
        NotAStore: the place holds something else, or nothing and `create` is off.
        StoreTooNew, SchemaTooNew: made by a newer ckptstore.
        SchemaTooOld: run `ckptstore migrate`.
        CatalogLocation: SQLite on a network file system.
    """
    name = address.check_name("run", run)
    if not read_only and "torch" in sys.modules:
        import_staging()  # now rather than within training, at its first save
    parts = open_parts(
        url,
        catalog=catalog,
        create=create and not read_only,
        read_only=read_only,
        digest=digest,
        chunk_bytes=chunk_bytes,
        compression=compression,
        storage_options=storage_options,
        encrypt=encrypt,
        key_file=key_file,
    )
    return Store(parts, name)


class Store(Keeping):
    """A store, seen from one of its runs. Made by `ckptstore.open`.

    A commit is named by its step, a tag, "latest", any of these behind `run@` for another run, or its record.
    Every method may raise CatalogError and StorageError when database or storage fail; nothing is half-made then.
    May be used from several threads. Use it as a context manager, or call `close`.
    """

    def __init__(self, parts: ChunkStore, run: str) -> None:
        super().__init__(parts, run)
        self._background = Background(parts)
        self._views = Views(parts)

    def __repr__(self) -> str:
        return f"<ckptstore.Store {self.url} run={self._run!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the store lies."""
        return self._parts.storage.url

    @property
    def run(self) -> str:
        """The run that steps without `run@` belong to."""
        return self._run

    def close(self) -> None:
        """Wait for a background commit, raise its error if nobody saw it, and give back memory, files, connections.

        Raises CommitInFlight where it is called within `commit_async` or `close`, as by a signal's handler.
        """
        self._background.close()

    # writing

    def commit(
        self,
        app_state: Mapping[str, Any],
        *,
        step: int,
        metadata: Mapping[str, Any] | None = None,
        parent: Ref | None = None,
        run: str | None = None,
        allow_pickle: bool = False,
        process_group: Group | None = None,
        replicated: str | Sequence[str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> CommitRecord:
        """Store a state as one immutable step; only bytes that the store does not hold yet are written.

        In a process group of several ranks all call this, and make one commit together: DTensors are stored as the
        whole tensors they are parts of, what is the same on all ranks that have it once, and what is not by rank.

        Args:
            app_state: name → object with `state_dict` and `load_state_dict`, or nested plain state with tensors.
            step: 0 to 2**63 - 1, unique in the run.
            metadata: JSON, such as {"loss": 2.3}; shown by `log`, used by `KeepBest`. Of several ranks, rank 0's.
            parent: the commit this one continues; by default the run's highest step below this one. With a parent
                from another run, the first commit of a run forks it from there.
            run: another run than the store's own; made if new.
            allow_pickle: store leaves of unknown types as pickles.
            process_group: the ranks; by default those of torch.distributed's default group, if it is initialised.
            replicated: globs, as `paths` of `checkout`, given alike on all ranks: leaves that are taken for the same on
                all ranks that have them, without hashing them to compare. Where they differ, one rank's is stored.
            progress: called with (stage, bytes done, bytes in all); of several ranks each with its own bytes.

        Returns:
            The commit's record. It is durable: a crash after the return loses nothing, one before changes nothing.

        Raises:
            UnsupportedLeaf: a leaf has no encoding; names its path.
            StepExists: the step holds another state. The same state again is success, with the metadata it had.
            InvalidArgument: a bad step, run, parent, metadata or glob; ranks that give another store, run or step.
            StepNotFound, RunNotFound, TagNotFound: there is no such `parent`.
            StateError: a DTensor, or what is `replicated`, does not fit together, or a tensor of the host was changed
                meanwhile; names the path.
            StoreTooNew: the store has what this version would not know how to write.
            RankFailed: another rank failed, or is gone.
            InterpreterExiting: too late; nothing was begun.
        """
        import_committing()
        wish = self._wish(app_state, step, metadata, parent, run, allow_pickle=allow_pickle, replicated=replicated)
        return self._background.commit(wish, process_group, progress)

    def _commit_alone(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        metadata: Mapping[str, Any] | None,
        parent: Ref | None,
        allow_pickle: bool,
        progress: ProgressCallback | None,
        own: Sequence[Mapping[str, Any]] = (),
    ) -> CommitRecord:
        """Commit what this process has, whatever process groups there are: for imports.

        `own` is what several ranks had each for itself, by rank.
        """
        import_committing()
        wish = self._wish(state, step, metadata, parent, None, allow_pickle=allow_pickle, own=own)
        return self._background.commit(wish, None, progress, alone=True)

    def commit_async(
        self,
        app_state: Mapping[str, Any],
        *,
        step: int,
        metadata: Mapping[str, Any] | None = None,
        parent: Ref | None = None,
        run: str | None = None,
        allow_pickle: bool = False,
        process_group: Group | None = None,
        replicated: str | Sequence[str] | None = None,
        just_in_time: bool = True,
        when_busy: WhenBusy = "wait",
    ) -> CommitHandle:
        """Set the state apart, return, and commit it in the background. Arguments and errors as for `commit`.

        An error of the background commit is raised by the handle's `result`, or else by the store's next commit or
        `close`; if none of these is called, it is printed at exit.

        In a process group of several ranks all call this, and make one commit together, as with `commit`. It returns
        once all have set their states apart; when any of them cannot, it raises on all, and nothing is begun. The
        background commit talks over a gloo group of its own, which the first call makes, and which waits for a silent
        rank as long as the process group does; so training may use its groups meanwhile. Close the store, or wait for
        the handle's `result`, before the process group is destroyed.

        Beside the arguments of `commit`:
            parent: by default the highest step below this one that the run has when the background commit begins.
            just_in_time: leave parameters and state of the optimizers in `app_state` (also in its dicts and lists)
                where they are, and copy what is still to be written when one of them is about to step. Until
                then, or until the handle's `wait_staged` returns, nobody else may change them: the commit fails
                with StateError then, unless the change went past torch's version counters, as by `.data` or a DTensor's
                `to_local()`. All else, and everything without `just_in_time`, is copied before this returns, unless it
                is unchanged.
                Tensors on CUDA devices are always copied: before anything that current streams are given later.
            when_busy: "wait" for the background commit in flight, or "raise" CommitInFlight; among ranks on all, when
                any has one.
        """
        import_staging()
        wish = self._wish(app_state, step, metadata, parent, run, allow_pickle=allow_pickle, replicated=replicated)
        return self._background.launch(wish, process_group, just_in_time=just_in_time, when_busy=when_busy)

    # reading

    def checkout(
        self,
        step: Ref = LATEST,
        *,
        into: Mapping[str, Any] | None = None,
        paths: str | Sequence[str] | None = None,
        strict: bool = True,
        allow_cast: bool = False,
        skip_damaged: bool = False,
        allow_pickle: bool = False,
        process_group: Group | None = None,
        memory_budget_bytes: int | None = None,
        progress: ProgressCallback | None = None,
    ) -> Any:
        """The state of a commit, bit-exact: as new nested state with tensors on the CPU, or into live objects.

        Every process of a group checks out what it likes; none waits for another. DTensors in `into` are filled with
        their parts, whatever parts the ranks had that committed. Without `into`, tensors come whole, and what a rank
        had for itself comes beneath its number.

        Args:
            step: the commit.
            into: an app state like the one committed, or a part of it: only the names it has are loaded. Tensors
                are filled where they are, on their device; every object's `load_state_dict` is called; plain values
                are put into their dicts and lists.
            paths: globs of logical paths, or containers' paths: only these leaves. `*` stays within a segment,
                `**` crosses them.
            strict: with `into`, paths that only one side has are an error; otherwise what both have is loaded, and
                the others are logged to the logger `ckptstore` (INFO).
                Modules, `StateDict` and plain state are compared so. Optimizers, schedulers and other objects get the
                commit's state whole, whatever theirs is.
            allow_cast: with `into`, cast into tensors and arrays of other dtypes as `Tensor.copy_` does; otherwise they
                are an error. State that an optimizer lacks yet gets its parameter's dtype, except for `step`.
                Complex numbers do not become real; sparse and quantised tensors are not cast.
            skip_damaged: leave out leaves whose bytes are damaged or missing, and warn of them; not with `into`.
            allow_pickle: load leaves that were stored as pickles. A pickle can run any code.
            process_group: with `into`, the ranks among which this process gets what its rank had for itself; by default
                those of torch.distributed's default group, if it is initialised.
            memory_budget_bytes: what reading may hold beside the state; by default 128 MiB, or what one chunk needs.
            progress: called with (stage, bytes done, bytes in all).

        Returns:
            The nested state, or `into` when that was given.

        Raises:
            StepNotFound, RunNotFound, TagNotFound: there is no such commit.
            StateMismatch: with `into`; everything that does not fit, before anything was written.
            PickleRefused: a leaf was stored as a pickle, and `allow_pickle` is off.
            UnknownType: a leaf is of a class that this process has not imported.
            BudgetTooSmall: one chunk does not fit into the given budget.
            PathNotFound: a path that selects nothing, or no path at all (`paths=[]`).
            InvalidArgument: `skip_damaged` with `into`.
            StateError: a dict would lose one of several ranks' keys that are equal, as 1 and an IntEnum's member are.
            CorruptData: stored bytes are damaged; with `skip_damaged`, those of every leaf. Objects of `into` may be
                partly loaded then.
        """
        from ckptstore.operations.loading.checkout import checkout
        from ckptstore.operations.loading.restore import restore
        from ckptstore.operations.ranks.groups import seat

        view = self._views.of(self._find(step))
        globs = as_globs(paths)
        advance = meter(progress, "checkout", view.commit.logical_bytes)
        options: dict[str, Any] = {"allow_pickle": allow_pickle, "budget": memory_budget_bytes, "advance": advance}
        if into is None:
            return checkout(self._parts, view, globs, skip_damaged=skip_damaged, **options)
        if skip_damaged:
            raise InvalidArgument("skip_damaged with into: live objects are not filled in part; choose by paths=")
        self._background.settle()
        options |= {"strict": strict, "allow_cast": allow_cast}
        restore(self._parts, view, into, globs, seat=seat(process_group), **options)
        return into

    def read(
        self,
        step: Ref,
        path: str,
        *,
        index: Any = ...,
        out: Any = None,
        allow_pickle: bool = False,
        memory_budget_bytes: int | None = None,
    ) -> Any:
        """One leaf, or everything beneath a container's path.

        Args:
            step: the commit.
            path: logical path.
            index: ints, slices with positive steps and `...`, as numpy takes them; only the chunks that hold the
                wanted elements are read.
            out: a tensor or array of the result's dtype and shape that is filled and returned; a DTensor, without
                `index`, takes its part.
            allow_pickle: see `checkout`.
            memory_budget_bytes: what reading may hold beside the result; by default 128 MiB, or what one chunk needs.

        Raises:
            StepNotFound, RunNotFound, TagNotFound: there is no such commit.
            PathNotFound: the commit has no such path; names the nearest.
            PickleRefused, UnknownType: see `checkout`.
            InvalidArgument: an index or `out` that does not fit the leaf.
            BudgetTooSmall: one chunk does not fit into the given budget.
            CorruptData: stored bytes are damaged.
        """
        from ckptstore.operations.loading.read import read

        view = self._views.of(self._find(step))
        if out is not None:  # which may be of the state that is being committed
            self._background.settle()
        return read(self._parts, view, path, index, out, allow_pickle=allow_pickle, budget=memory_budget_bytes)

    def _wish(
        self,
        app_state: Mapping[str, Any],
        step: int,
        metadata: Mapping[str, Any] | None,
        parent: Ref | None,
        run: str | None,
        **leaves: Any,
    ) -> Wish:
        from ckptstore.operations.ranks.wishes import Wish, flattened

        name = self._run if run is None else run
        draft = partial(self._draft, name, step, metadata, parent)
        return Wish(name, step, partial(flattened, app_state, **leaves), draft)

    def _draft(self, run: str, step: int, metadata: Mapping[str, Any] | None, parent: Ref | None) -> history.Draft:
        self._parts.check_writable()
        base = None if parent is None else self._find(parent)
        return history.draft(address.check_name("run", run), step, base, metadata)
