"""Pictures for notebooks and pages: a cursor, a hash ring, events in time.

Nothing here looks anything up: a picture is made of what it is given. Imported by its public name,
`pulsar_spark.pictures`.
"""
