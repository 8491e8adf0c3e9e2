"""What int8 costs in accuracy, and what it costs with other quantisers. `__main__.py` says how to start it.

published.py   tasks of models that others published, with public data
trained.py     tasks of networks that are trained here: networks.py on the data of examples.py
measures.py    tasks, and how outputs are scored
contenders.py  msedge and others, calibrated on the same rows
page.py        results as tables, with intervals of paired differences
"""
