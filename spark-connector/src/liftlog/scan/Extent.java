package liftlog.scan;

import java.io.Serializable;

/** The records [first, next) take up about so many bytes. */
public record Extent(long first, long next, long sizeBytes) implements Serializable {}
