import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;

import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.data.binary.BinaryStringData;

/**
 * A column in files that are mapped into memory: `PATH.numbers` has numbers, or times in
 * microseconds; texts lie in `PATH.texts` one after another, and `PATH.ends` has where each ends.
 * Texts as codes are numbers in `PATH.codes`, each the place of a text among those of
 * `PATH.dictionary`, whose rows are one object for each text.
 */
public class FlinkColumn {
    static final int WORD_BYTES = 8;
    static final int CODE = -1;

    final int kind;
    final FileChannel wordFile;
    final FileChannel textFile;
    final Object[] dictionary;
    ByteBuffer words;
    ByteBuffer texts;
    long begin;
    long last;
    int row;

    public FlinkColumn(String path, int kind, boolean coded) throws Exception {
        boolean isText = kind == FlinkSources.TEXT;
        boolean isCoded = isText && coded;
        this.kind = isCoded ? CODE : kind;
        wordFile = open(path + (isCoded ? ".codes" : isText ? ".ends" : ".numbers"));
        textFile = isText && !isCoded ? open(path + ".texts") : null;
        dictionary = isCoded ? all(path + ".dictionary") : null;
    }

    /** All texts of a column. */
    static Object[] all(String path) throws Exception {
        FlinkColumn texts = new FlinkColumn(path, FlinkSources.TEXT, false);
        Object[] found = new Object[(int) texts.rows()];
        texts.map(0, found.length);
        for (int i = 0; i < found.length; i++) {
            found[i] = texts.next();
        }
        texts.close();
        return found;
    }

    static FileChannel open(String path) throws Exception {
        return FileChannel.open(
            Paths.get(path, new String[0]), new OpenOption[] {StandardOpenOption.READ});
    }

    static ByteBuffer map(FileChannel file, long begin, long end) throws Exception {
        return file.map(FileChannel.MapMode.READ_ONLY, begin, end - begin)
            .order(ByteOrder.LITTLE_ENDIAN);
    }

    long rows() throws Exception {
        return wordFile.size() / WORD_BYTES;
    }

    /** Maps some rows, which `next` returns in turn. */
    void map(long first, int rows) throws Exception {
        row = 0;
        words = map(wordFile, first * WORD_BYTES, (first + rows) * WORD_BYTES);
        if (kind == FlinkSources.TEXT) {
            begin = first == 0 ? 0
                : map(wordFile, (first - 1) * WORD_BYTES, first * WORD_BYTES).getLong(0);
            last = begin;
            texts = map(textFile, begin, words.getLong((rows - 1) * WORD_BYTES));
        }
    }

    Object next() {
        long word = words.getLong(row++ * WORD_BYTES);
        if (kind == CODE) {
            return dictionary[(int) word];
        }
        if (kind == FlinkSources.NUMBER) {
            return Long.valueOf(word);
        }
        if (kind == FlinkSources.TIME) {
            return TimestampData.fromEpochMillis(word / 1000);
        }
        byte[] text = new byte[(int) (word - last)];
        texts.get((int) (last - begin), text);
        last = word;
        return BinaryStringData.fromBytes(text);
    }

    void close() throws Exception {
        wordFile.close();
        if (textFile != null) {
            textFile.close();
        }
    }
}
