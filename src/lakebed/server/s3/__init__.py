"""The S3 gateway: repositories as buckets, for clients that speak S3.

Owns: signatures, the forms of bodies and replies, the mapping of buckets and keys to branches and paths. It has no
storage logic: it calls the verbs of `lakebed.repo` that the REST routes call. Off unless the server has an S3 key.
"""
