"""Commands of real work on a workspace; like all of the command line they are thin, and import torch late."""
