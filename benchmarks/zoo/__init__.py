"""Public models, run by msedge and by the runtime of their format. `__main__.py` says how to start it.

    models.json    the list: where each model is, its digest, which inputs it takes; why it is not equal, if it is not
    listing.py     that file as data
    fetch.py       the models' files, from package indices and public repositories
    compare.py     one model against its peer, in a process of its own
    page.py        docs/models.md and docs/models.json
"""
