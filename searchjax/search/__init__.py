"""The web the policy searches: the atlas, its index, its server and the search tool."""
