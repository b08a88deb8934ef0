"""What renting a machine adds to a run: how it starts, and the least that is charged."""

from shardwise.spec.job.strict import NotNegative, Positive, Strict


class RentSpec(Strict):
    """Counted where `hardware: any` leaves it open what is rented. Usual values are nominal, not
    measured.

    Attributes:
        boot_minutes: until a machine with an image of the trainer runs; 0 where yours does.
        download_mb_per_second: of the model's files.
        disk_mb_per_second: of reading and writing weights.
        minimum_minutes: the least time that is charged; providers differ, from a second to an hour.
    """

    boot_minutes: NotNegative = 5.0
    download_mb_per_second: Positive = 250.0
    disk_mb_per_second: Positive = 1000.0
    minimum_minutes: NotNegative = 0.0

    @property
    def sentence(self) -> str:
        """What is in runs and costs."""
        least = f"at least {self.minimum_minutes:g} min are charged" if self.minimum_minutes else "no least charge"
        return (
            f"runs and costs include starting: {self.boot_minutes:g} min to boot, the weights at "
            f"{self.download_mb_per_second:g} MB/s, loading, compiling and saving; {least} "
            "(keys of `rent` in the job); where your machine is up and has the model, take these off"
        )
