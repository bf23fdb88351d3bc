"""The patch: recipe of anchors, git-format series, three-way merge, compatibility matrix."""
