"""Popular first in serving: all-hot queries beside cold ones, with it, without it, and all in memory."""
