"""The S3 gateway: it serves repositories as buckets to clients that speak S3.

Owns: signatures, the forms of bodies and replies, the mapping of buckets and keys to branches and paths. It has no
storage logic: it calls the same verbs of `lakebed.repo` as the REST routes. Off unless the server has an S3 key.
"""
