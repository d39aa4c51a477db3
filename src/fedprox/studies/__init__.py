"""Studies: methods compared over settings and seeds, tuned, with paired differences."""
