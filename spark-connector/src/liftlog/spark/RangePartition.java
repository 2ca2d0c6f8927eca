package liftlog.spark;

import liftlog.scan.ScanRange;
import org.apache.spark.sql.connector.read.InputPartition;

/** The range of one task. */
record RangePartition(ScanRange range) implements InputPartition {}
