"""From a violated claim to a finding: the fault's name, whether it fits, the smallest case, the words."""
