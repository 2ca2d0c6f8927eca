package liftlog.records;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;

/** Batches cover the offsets without gaps, and leader epochs never decrease. */
class PlaceTest {
    private final Epochs epochs = new Epochs(List.of(new long[] {1, 10}, new long[] {4, 20}));

    private static BatchHeader batch(long base, long next, long epoch) {
        return new BatchHeader(64, base, next, 0, 0, 0, epoch, 0, 0);
    }

    @Test
    void epochsByOffset() {
        long[][] expected = {{9, 0, 10}, {10, 1, 20}, {19, 1, 20}, {20, 4, Long.MAX_VALUE}};
        for (long[] one : expected) {
            assertEquals(one[1], epochs.at(one[0]));
            assertEquals(one[2], epochs.endOf(one[0]));
        }
        assertEquals(0, Epochs.NONE.at(5));
        assertEquals(Long.MAX_VALUE, Epochs.NONE.endOf(5));
    }

    @Test
    void aBatchBelongsAtTheOffsetInItsEpochAndBeforeTheEnd() {
        Place place = new Place(10, 30, epochs);
        assertTrue(place.holds(batch(10, 12, 1)));
        assertTrue(place.holds(batch(10, 30, 2)));
        assertFalse(place.holds(batch(9, 12, 1)));
        assertFalse(place.holds(batch(11, 12, 1)));
        assertFalse(place.holds(batch(10, 31, 1)));
        assertFalse(place.holds(batch(10, 12, 0)));
    }

    @Test
    void theEpochOfABatchHoldsForThoseAfterIt() {
        Place place = new Place(10, 30, Epochs.NONE);
        place.passBy(batch(10, 12, 3));
        assertEquals(12, place.offset());
        assertEquals(3, place.sureEpoch());
        assertFalse(place.holds(batch(12, 13, 2)));
        assertTrue(place.holds(batch(12, 13, 3)));
        place.goOnAt(20); // behind damage
        assertTrue(place.holds(batch(20, 21, 0)));
    }

    @Test
    void anEpochThatIsListedBeginsAtItsOffset() {
        Place place = new Place(10, 30, epochs);
        place.passBy(batch(10, 19, 1));
        assertTrue(place.holds(batch(19, 20, 1)));
        Place before = place.copy();
        place.passBy(batch(19, 20, 1));
        assertFalse(place.holds(batch(20, 21, 3)));
        assertTrue(place.holds(batch(20, 21, 4)));
        assertEquals(4, place.sureEpoch());
        assertTrue(before.holds(batch(19, 20, 1)));
    }
}
