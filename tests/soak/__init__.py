"""A soak: real flights, separate publisher and reader processes, random kills, nothing lost."""
