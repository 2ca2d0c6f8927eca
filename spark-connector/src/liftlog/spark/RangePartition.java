package liftlog.spark;

import liftlog.scan.ScanRange;
import org.apache.spark.sql.connector.read.InputPartition;

/** One range as a task. */
record RangePartition(ScanRange range) implements InputPartition {}
