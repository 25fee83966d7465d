//! What an access list answers.

use super::*;

pub(super) const KEYS: [PublicKey; 3] =
    [PublicKey([1; 32]), PublicKey([2; 32]), PublicKey([3; 32])];

pub(super) fn token(seed: u8) -> Token {
    Token::from_random([seed; 22])
}

pub(super) fn entry(seed: u8, uses: TokenUses) -> TokenEntry {
    TokenEntry {
        token: token(seed),
        uses,
        created_at: 0,
        expires_at: None,
        user: None,
    }
}

pub(super) fn name(text: &str) -> UserName {
    text.parse().unwrap()
}

pub(super) fn shown(token: &Token) -> Option<&[u8]> {
    Some(token.as_str().as_bytes())
}

#[test]
fn a_one_time_token_admits_one_client_who_may_return_without_it() {
    let mut list = AccessList::default();
    list.add_token(entry(1, TokenUses::ONE)).unwrap();
    assert_eq!(
        list.authorise(KEYS[0], None, 11),
        AccessAnswer::RefusedUnknown
    );
    assert_eq!(
        list.authorise(KEYS[0], shown(&token(2)), 11),
        AccessAnswer::RefusedUnknown
    );
    assert_eq!(
        list.authorise(KEYS[0], shown(&token(1)), 11),
        AccessAnswer::Enrolled(None)
    );
    assert_eq!(list.authorise(KEYS[0], None, 12), AccessAnswer::Known(None));
    assert_eq!(
        list.authorise(KEYS[1], shown(&token(1)), 12),
        AccessAnswer::RefusedUnknown
    );
    assert_eq!(list.standing_token(TokenUses::ONE), None);
}

#[test]
fn a_reusable_token_admits_many_until_revoked() {
    let mut list = AccessList::default();
    list.add_token(entry(1, TokenUses::Many)).unwrap();
    assert_eq!(
        list.authorise(KEYS[0], shown(&token(1)), 0),
        AccessAnswer::Enrolled(None)
    );
    assert_eq!(
        list.authorise(KEYS[1], shown(&token(1)), 0),
        AccessAnswer::Enrolled(None)
    );
    assert!(!list.revoke_token("BB"), "too short to be meant");
    assert!(list.revoke_token(token(1).label()));
    assert_eq!(
        list.authorise(KEYS[2], shown(&token(1)), 0),
        AccessAnswer::RefusedUnknown
    );
    assert_eq!(list.authorise(KEYS[1], None, 0), AccessAnswer::Known(None));
}

#[test]
fn a_revoked_client_stays_out_even_with_a_token() {
    let mut list = AccessList::default();
    list.add_token(entry(1, TokenUses::Many)).unwrap();
    list.authorise(KEYS[0], shown(&token(1)), 0);
    assert!(list.set_revoked(KEYS[0], true).unwrap());
    assert!(!list.set_revoked(KEYS[1], true).unwrap());
    assert_eq!(
        list.authorise(KEYS[0], shown(&token(1)), 0),
        AccessAnswer::RefusedRevoked
    );
    assert!(list.set_revoked(KEYS[0], false).unwrap());
    assert_eq!(list.authorise(KEYS[0], None, 0), AccessAnswer::Known(None));
}

#[test]
fn tokens_expire_and_count_their_uses() {
    let mut list = AccessList::default();
    let two = TokenEntry {
        expires_at: Some(100),
        ..entry(1, TokenUses::Left(2))
    };
    list.add_token(two).unwrap();
    let show = |list: &mut AccessList, key, now| list.authorise(key, shown(&token(1)), now);
    assert_eq!(show(&mut list, KEYS[0], 99), AccessAnswer::Enrolled(None));
    let mut late = list.clone();
    assert_eq!(show(&mut late, KEYS[1], 100), AccessAnswer::RefusedUnknown);
    assert!(late.tokens().is_empty(), "expired tokens are forgotten");
    assert_eq!(show(&mut late, KEYS[0], 100), AccessAnswer::Known(None));
    assert_eq!(show(&mut list, KEYS[1], 99), AccessAnswer::Enrolled(None));
    assert_eq!(
        show(&mut list, KEYS[2], 99),
        AccessAnswer::RefusedUnknown,
        "used up"
    );
}

#[test]
fn a_user_has_devices_which_go_with_it() {
    let mut list = AccessList::default();
    let of = |user: &str, seed| TokenEntry {
        user: Some(name(user)),
        ..entry(seed, TokenUses::Many)
    };
    assert!(list.add_token(of("ann", 1)).is_err(), "no such user yet");
    list.add_user(UserEntry::new(name("ann"), 0)).unwrap();
    list.add_user(UserEntry::new(name("bob"), 0)).unwrap();
    assert!(list.add_user(UserEntry::new(name("ann"), 0)).is_err());
    list.add_token(of("ann", 1)).unwrap();
    list.add_token(of("bob", 2)).unwrap();
    list.add_token(entry(3, TokenUses::Many)).unwrap();
    let show = |list: &mut AccessList, key, seed| list.authorise(key, shown(&token(seed)), 0);
    let ann = Some(name("ann"));
    assert_eq!(
        show(&mut list, KEYS[0], 1),
        AccessAnswer::Enrolled(ann.clone())
    );
    assert_eq!(
        show(&mut list, KEYS[1], 1),
        AccessAnswer::Enrolled(ann.clone())
    );
    assert_eq!(
        show(&mut list, KEYS[0], 3),
        AccessAnswer::Known(ann),
        "stays ann's"
    );
    let bob = Some(name("bob"));
    assert_eq!(
        show(&mut list, KEYS[1], 2),
        AccessAnswer::Enrolled(bob.clone()),
        "moves"
    );
    assert_eq!(list.clients().len(), 2);

    assert_eq!(list.remove_user(&name("ann")), Some(1));
    assert_eq!(list.remove_user(&name("ann")), None);
    assert_eq!(show(&mut list, KEYS[0], 3), AccessAnswer::RefusedRevoked);
    assert_eq!(show(&mut list, KEYS[1], 2), AccessAnswer::Known(bob));
    assert_eq!(
        show(&mut list, KEYS[2], 1),
        AccessAnswer::RefusedUnknown,
        "her token is gone"
    );
    assert!(
        list.set_revoked(KEYS[0], false).is_err(),
        "nobody's any more"
    );
    list.check().unwrap();
}

#[test]
fn who_leaves_is_found_and_who_comes_is_nobody_who_leaves() {
    let mut before = AccessList::default();
    before.add_token(entry(1, TokenUses::Many)).unwrap();
    let enrol = |list: &mut AccessList, key| list.authorise(key, shown(&token(1)), 0);
    enrol(&mut before, KEYS[0]);
    enrol(&mut before, KEYS[1]);
    let mut after = before.clone();
    enrol(&mut after, KEYS[2]);
    assert!(after.leaving_since(&before).is_empty());
    assert!(
        AccessList::default()
            .leaving_since(&AccessList::default())
            .is_empty()
    );
    after.set_revoked(KEYS[1], true).unwrap();
    let leaving = [(KEYS[1].0, Leaving::Revoked)];
    assert_eq!(after.leaving_since(&before), leaving.into());
    assert!(
        after.leaving_since(&after.clone()).is_empty(),
        "it has left"
    );
    let leaving = [KEYS[0], KEYS[2]].map(|key| (key.0, Leaving::Forgotten));
    assert_eq!(AccessList::default().leaving_since(&after), leaving.into());
}

#[test]
fn the_list_has_an_end() {
    let mut list = AccessList::default();
    list.add_token(entry(1, TokenUses::Many)).unwrap();
    for i in 0..MAX_CLIENTS {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&i.to_le_bytes());
        assert_eq!(
            list.authorise(PublicKey(key), shown(&token(1)), 0),
            AccessAnswer::Enrolled(None)
        );
    }
    assert_eq!(
        list.authorise(KEYS[0], shown(&token(1)), 0),
        AccessAnswer::RefusedFull
    );
}
