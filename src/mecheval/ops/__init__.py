"""The sequence operations under the mixers: one readable reference and one fast CPU path each."""
