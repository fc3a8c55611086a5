"""The losses: supervised, preference and policy objectives, as written in the paper."""
