"""Popular first in serving: all-hot queries beside cold ones, against all rows in memory and older code."""
