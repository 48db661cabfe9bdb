"""What tests share and no user of the library needs: simulated worlds, a model of each store, workloads and test data.

`lakebed.testing` has the tools that these use. The folder ``tests`` is on the import path of the tests and of every
process that they start.
"""
