package liftlog.records;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.junit.jupiter.api.Test;

class BytesTest {
    private final byte[] bytes = HexFormat.of().parseHex("00fffefdfcfbfaf9f8");

    @Test
    void numbersAreLittleEndian() {
        assertEquals(0xFEFF, Bytes.u16(bytes, 1));
        assertEquals(0xFCFDFEFF, Bytes.i32(bytes, 1));
        assertEquals(0xFCFDFEFFL, Bytes.u32(bytes, 1));
        assertEquals(0xF8F9FAFBFCFDFEFFL, Bytes.i64(bytes, 1));
        Bytes.putInt(bytes, 4, 0x01020304);
        assertEquals(0x01020304, Bytes.i32(bytes, 4));
        assertEquals(4, bytes[4]);
    }

    @Test
    void noNumberReachesBehindTheEnd() {
        assertThrows(IndexOutOfBoundsException.class, () -> Bytes.u16(bytes, 8));
        assertThrows(IndexOutOfBoundsException.class, () -> Bytes.i32(bytes, 6));
        assertThrows(IndexOutOfBoundsException.class, () -> Bytes.i64(bytes, 2));
        assertThrows(IndexOutOfBoundsException.class, () -> Bytes.i64(bytes, -1));
    }

    /** The usual check value of CRC-32C. */
    @Test
    void theChecksumIsCastagnolis() {
        byte[] text = "..123456789".getBytes(StandardCharsets.US_ASCII);
        assertEquals(0xE3069283, Bytes.crc32c(text, 2, 9));
        assertEquals(0, Bytes.crc32c(text, 2, 0));
    }

    @Test
    void lengthsArePaddedToEight() {
        for (long length = 0; length < 40; length++) {
            assertEquals((length + 7) / 8 * 8, Bytes.padded(length));
        }
        assertEquals(1L << 32, Bytes.padded((1L << 32) - 1));
    }
}
