"""Why a launch would be refused, and slips that it warns of."""
