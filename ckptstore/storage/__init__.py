"""Where bytes lie: a folder, an object store, anything fsspec reaches."""
