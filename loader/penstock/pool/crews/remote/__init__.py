"""Workers on other machines, as training knows them. What runs over there is in `penstock/agent`."""
